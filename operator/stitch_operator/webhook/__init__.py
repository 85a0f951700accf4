"""The admission webhook: stamps annotated workloads, and puts the job side into annotated pods."""
