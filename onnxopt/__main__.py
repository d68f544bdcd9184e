"""python -m onnxopt"""

from onnxopt.tools.cli import main

main()
