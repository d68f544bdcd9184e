"""ONNX to ONNX: reading, shapes, passes, rewrite rules, writing. May import program.

Within the room, shapes <- passes <- layout <- rewrite. A folder imports those to its left, and modules here without
folders.
"""
