"""The checks of wang."""

from icgd_papers.theorems.wang import classes as classes
from icgd_papers.theorems.wang import descent as descent
from icgd_papers.theorems.wang import functions as functions
from icgd_papers.theorems.wang import resources as resources
