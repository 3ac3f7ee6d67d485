"""Recipes resolved into runs that answer a question: arms of equal budget, several seeds, one table."""
