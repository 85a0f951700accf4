// Failures of stitched operations. TensorFlow's own operations do their work then, so the user's
// step goes on and nobody raises anything: here the job side learns of them.
#ifndef STITCH_FAILURES_H_
#define STITCH_FAILURES_H_

#include <string>

namespace stitch {

// Keeps the first message of each kernel key.
void AddFailure(const std::string& key, const std::string& message);

}  // namespace stitch

#endif  // STITCH_FAILURES_H_
