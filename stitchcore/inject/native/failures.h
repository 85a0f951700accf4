// Errors that stitched operations raised. They end the user's step, so the job side must learn
// which artifact to blame even when the script catches the exception or dies of it.
#ifndef STITCH_FAILURES_H_
#define STITCH_FAILURES_H_

#include <string>

namespace stitch {

// Keeps the first message of each kernel key.
void AddFailure(const std::string& key, const std::string& message);

}  // namespace stitch

#endif  // STITCH_FAILURES_H_
