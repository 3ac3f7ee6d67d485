"""Experiments over recipes and runs, by what is asked.

sweep: what do many runs find? claims: does what a paper says hold here? compare: how do recipes or runs differ? timing:
how fast are models? `results` is what they share: rows of finished runs, and tables of rows.
"""
