"""The deterministic simulator: a hostile world in virtual time, the same again for the same seed.

Read in this order: `loop` (virtual time, and who runs next), `truth` (what really stands in the
table, with its recent past in `partitions`), `faults` (what can go wrong, and how often), `world`
(one truth, one source of randomness, one trace), `process` (what lives and dies in it), `hostile`
and `blobs` (what stands between a process and the truth), `supervisor` (who starts it again).

Then what is simulated: `flow` (the graph of all runs), `effects` (the world outside that some of
them call) with `oracle` (a model, and what is paid) and `gate` (a quota), `script` (what users want
of them), `fleet` (workers and clients), `lot` (what befalls the workers of some), `chronicle` (what
each run truly went through), `promises` with `order` (runs of one session), `reaping` (dead
workers), `family` (runs that start others) and `once` (calls), and `bugs` with `effect_bugs` and
`worker_bugs` (what is planted, to be found).
"""
