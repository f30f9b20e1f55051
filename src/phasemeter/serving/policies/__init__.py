"""The field's schedulers, one readable screen each. Which is which: facts are in each file's head."""
