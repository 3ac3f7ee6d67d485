"""Sweeps: arms and seeds planned as runs, trained once, measured, and written as rows, tables and figures."""
