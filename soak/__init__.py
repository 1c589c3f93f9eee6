"""Soak: ``make soak``. Looks for what nothing has found so far, for as long as it may.

Read in this order: `findings` (what broke, kept from one soak to the next), `minimiser` (less of a
seed that still breaks), `simulator` (fresh seeds on all cores); then real processes: `disk` and
`proxy` (what goes wrong), `errands` (what users want), `client` (who does it), `trouble` (what is
done to the processes), `verdict` (what must hold at the end), `rounds`.
"""
