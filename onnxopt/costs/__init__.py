"""What is faster: measured numbers as data, and functions over numbers. Imports program alone: no graph, no kind.

A family is a JSON file with the numbers, each by the architecture that they were measured on, the GPU, the date and the
files of results; and a module that says what they mean. One kernel serves every architecture of a fatbin, so those of
the newest architecture stand for all.
"""
