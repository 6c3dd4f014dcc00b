"""Figures and tables from the files of a run; no training imports."""
