"""Root-mean-square normalisation, over the hidden size or over each head, with the residual added first."""
