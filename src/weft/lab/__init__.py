"""lab: what shows weft at work, times it and tries it, by users' functions that are the lab's own.

In: nothing. Out: workloads and examples; demonstrations and derivations (`demo`, `derivation`); times beside other
compilers (`measure`, `gpu`); campaigns of random functions, programs and rules (`fuzz`).
"""
