"""Measures what the machine gives, what operators and models make of it, and what peers do.

limits      rates of the machine, shares of each kind of layer: the planner reads them
operators   each operator against the loop that bounds it, and against float64
models      decoding and prefill by depth, beside all-MLA forms and peers
"""
