"""The state of a run: values, the questions that they answer, and their own bookkeeping."""
