"""isoloss harness: from a grid in YAML to finished runs.

Glossary: a *recipe* is a residual variant; a *grid* is the YAML; a *sweep* its expansion; a *run*
is one configuration and seed; an *attempt* one try at a run; an *arm* all runs of one recipe
setting; a
*cell* an arm at one size and budget. A *sublayer* is an attention or an MLP; a layer is two.
"""
