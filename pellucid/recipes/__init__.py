"""Runs that state their evidence."""
