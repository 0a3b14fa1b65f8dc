"""lab: demonstrations, measurements and tests of weft, on functions as users write them.

In: nothing. Out: workloads and examples; demonstrations and derivations (`demo`, `derivation`); times beside other
compilers (`measure`, `gpu`); campaigns of random functions, programs and rules (`fuzz`).
"""
