"""How every figure looks: the names of `pictures/plotting.py`, for those who draw figures."""

from icgd.pictures.plotting import BLUE as BLUE
from icgd.pictures.plotting import DOTS_PER_INCH as DOTS_PER_INCH
from icgd.pictures.plotting import FAINT as FAINT
from icgd.pictures.plotting import GREEN as GREEN
from icgd.pictures.plotting import INK as INK
from icgd.pictures.plotting import ORANGE as ORANGE
from icgd.pictures.plotting import PURPLE as PURPLE
from icgd.pictures.plotting import RED as RED
from icgd.pictures.plotting import Axes as Axes
from icgd.pictures.plotting import Figure as Figure
from icgd.pictures.plotting import band as band
from icgd.pictures.plotting import describe as describe
from icgd.pictures.plotting import legend as legend
from icgd.pictures.plotting import logarithmic_height as logarithmic_height
from icgd.pictures.plotting import new_figure as new_figure
from icgd.pictures.plotting import new_grid as new_grid
from icgd.pictures.plotting import new_panels as new_panels
from icgd.pictures.plotting import note as note
from icgd.pictures.plotting import png as png
from icgd.pictures.plotting import svg as svg
from icgd.pictures.plotting import tag as tag
from icgd.pictures.plotting import whole_numbers as whole_numbers
