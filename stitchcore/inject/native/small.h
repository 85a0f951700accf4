// Room for a few values where a call has no time to allocate.
#ifndef STITCH_SMALL_H_
#define STITCH_SMALL_H_

#include <array>
#include <cstddef>
#include <vector>

namespace stitch {

// Room for `N` values without allocation, more when needed.
template <typename T, size_t N>
class Small {
 public:
  explicit Small(size_t size = 0) { Renew(size); }
  Small(const Small&) = delete;
  // `size` fresh values in the place of those that are there.
  void Renew(size_t size) {
    size_ = size;
    if (size > N) heap_.resize(size);
    data_ = size > N ? heap_.data() : fixed_.data();
    for (size_t i = 0; i < size; i++) data_[i] = T{};
  }
  T& operator[](size_t i) { return data_[i]; }
  T* data() { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::array<T, N> fixed_;
  std::vector<T> heap_;
  T* data_;
};

}  // namespace stitch

#endif  // STITCH_SMALL_H_
