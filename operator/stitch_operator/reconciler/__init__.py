"""The reconciler: what became of each job, as StitchedJob objects, Events and breakers."""
