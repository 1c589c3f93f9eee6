"""The deterministic simulator: a hostile world in virtual time, the same again for the same seed.

Read in this order: `loop` (virtual time, and who runs next), `truth` (what really stands in the
table, with its recent past in `partitions`), `faults` (what can go wrong, and how often), `world`
(one truth, one source of randomness, one trace), `process` (what lives and dies in it), `hostile`
and `blobs` (what stands between a process and the truth), `supervisor` (who starts it again).

`reduction` leaves parts of a seed out, and `fresh` draws seeds from the commit.

Then what is simulated: `flow` (the graph of all runs), `effects` (the world outside that some of
them call) with `oracle` (a model, and what is paid), `gate` (a quota) and `rates` (processes that
crowd at one), `script` (what users want of them), `treasurer` (who retries and funds runs that
others started), `fleet` with its `members` (workers and clients), its `setting` and its `verdict`,
`lot` (what befalls the workers of some), `chronicle` (what each run truly went through), `promises`
with `order` (runs of one session), `senders` (of signals), `inboxes` (that are full), `strangers`
(users that ask for the runs of others), `choices` (waits for the first of several), `reaping` (dead
workers), `family` (runs that start others), `once` (calls), `shared` (answers that runs share),
`streams` (text as it comes) and `outages` (stores that cannot be used for a while), and `bugs`
(what is planted, to be found).
"""
