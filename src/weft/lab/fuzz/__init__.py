"""fuzz: random functions, tensor programs and schedules; what each is run through and held against; campaigns over seeds."""
