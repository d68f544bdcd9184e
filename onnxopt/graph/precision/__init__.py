"""Lower precision: which values of a float32 model are stored in 16 bits, and the model that stores them so."""

from onnxopt.graph.precision.choose import Choice, Kept, choose
from onnxopt.graph.precision.constants import Constants
from onnxopt.graph.precision.convert import convert
from onnxopt.graph.precision.ranges import NOTHING, Range, range_of

__all__ = ["NOTHING", "Choice", "Constants", "Kept", "Range", "choose", "convert", "range_of"]
