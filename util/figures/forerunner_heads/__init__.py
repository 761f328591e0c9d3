"""Figure 01: forerunner token heads (Cho et al., ICLR 2025)."""
