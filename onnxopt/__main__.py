"""python -m onnxopt"""

from onnxopt.cli import main

main()
