"""Figures: settings, numbers and pictures, apart."""
