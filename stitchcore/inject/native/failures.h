// Failures of stitched operations. TensorFlow's own operations do their work then, so the user's
// step goes on and nobody raises anything: here the job side learns of them.
#ifndef STITCH_FAILURES_H_
#define STITCH_FAILURES_H_

#include <string>

namespace stitch {

// Counts the failures of each kernel in each node by message: other nodes have the same kernel, but
// other sizes and data.
void AddFailure(const std::string& kernel, const std::string& node, const std::string& message);

}  // namespace stitch

#endif  // STITCH_FAILURES_H_
