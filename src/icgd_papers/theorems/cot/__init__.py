"""The checks of cot."""

from icgd_papers.theorems.cot import chain as chain
from icgd_papers.theorems.cot import convex as convex
from icgd_papers.theorems.cot import layer as layer
from icgd_papers.theorems.cot import linear_models as linear_models
from icgd_papers.theorems.cot import network as network
