// Failures of stitched operations. TensorFlow's own operations do their work then, so the user's
// step goes on and nobody raises anything: here the job side learns of them.
#ifndef STITCH_FAILURES_H_
#define STITCH_FAILURES_H_

#include <string>

namespace stitch {

// Counts the failures of each kernel key, or of a node where its results were wrong, and keeps the
// first message.
void AddFailure(const std::string& key, const std::string& message);

}  // namespace stitch

#endif  // STITCH_FAILURES_H_
