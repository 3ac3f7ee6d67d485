"""Recipes, models and finished runs beside each other: what they cost, and what they score."""
