"""Many runs and attacks as one: a study is read, expanded to cells, checked as a whole, worked off and kept account of."""
