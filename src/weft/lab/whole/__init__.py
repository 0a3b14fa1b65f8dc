"""whole: whole models as people run them, `weft bench --models`.

In: models of the package transformers in their usual sizes, with random weights. Out: what a call takes in weft, Inductor and
eager PyTorch, in turns; whether the results are right, beside fp64; and what of weft's time library products, its kernels and
other operations take.
"""
