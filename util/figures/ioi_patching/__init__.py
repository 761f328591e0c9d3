"""Figure 03: head patching in indirect object identification (Cohen's project 41; Wang et al. 2022)."""
