"""The circuit card: which circuits of in-context learning a model has, on one page. It is parts of four figures."""
