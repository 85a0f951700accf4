#include "shadow.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace stitch {
namespace {

constexpr size_t kPage = 4096, kLeastBudget = size_t{4} << 20, kShare = 64;
constexpr size_t kMostSuspects = size_t{1} << 15;
// A result may lie this many times as far from ours as ours moves by another rounding: the widest
// of a few draws may be small by chance, and TensorFlow may add up in a worse order than we do.
constexpr double kTimes = 16;
// Units that inputs are moved by, and the share of the results' movement that counts. Of types of
// few digits one alone: it is no small step, and a value between two is rounded to either.
struct Moves {
  double units, share;
};
constexpr Moves kWideMoves{8, 1.0 / 8}, kShortMoves{1, 1.0 / 4};
constexpr int kRoundings = 3, kDraws = 24;
// Of a result whose movement is asked: roundings alone, for TensorFlow had the same inputs; of one
// that is made of such a result also moved inputs, of either kind.
constexpr int kKeptDraws = kRoundings, kChainedDraws = kRoundings + 2;
constexpr unsigned kRoundingBits = 0x6000u;  // of the floating-point control register

struct BFloat16 {
  uint16_t bits;
};
// A float with so many bits of fraction. Without infinities the largest exponent is a number's too,
// and all ones are NaN.
template <typename Bits, int kFractionBits, int kBias, bool kInfinite>
struct ShortFloat {
  static constexpr int kSign = 1 << (8 * sizeof(Bits) - 1), kFraction = 1 << kFractionBits;
  static constexpr int kNan = kSign - 1, kSpecial = kInfinite ? kSign - kFraction : kNan;
  static constexpr int kLowest = 1 - kBias - kFractionBits;  // the exponent of its smallest value
  static constexpr int kHighest = kInfinite ? kBias + 1 : kBias + 2;  // of what is beyond them all
  static constexpr int kDigits = kFractionBits + 1;
  Bits bits;
};
using Half = ShortFloat<uint16_t, 10, 15, true>;
using Float8E5M2 = ShortFloat<uint8_t, 2, 15, true>;
using Float8E4M3 = ShortFloat<uint8_t, 3, 7, false>;

double Wide(float value) { return value; }
double Wide(double value) { return value; }
double Wide(BFloat16 value) {
  uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}
template <typename Bits, int kFractionBits, int kBias, bool kInfinite>
double Wide(ShortFloat<Bits, kFractionBits, kBias, kInfinite> value) {
  using Type = decltype(value);
  int magnitude = value.bits & ~Type::kSign, fraction = magnitude % Type::kFraction;
  int lowest = std::max(magnitude / Type::kFraction - 1, 0) + Type::kLowest;
  if (magnitude >= Type::kFraction) fraction += Type::kFraction;
  bool infinite = kInfinite && magnitude == Type::kSpecial;
  double size = infinite                     ? HUGE_VAL
                : magnitude >= Type::kSpecial ? std::nan("")
                                              : std::ldexp(fraction, lowest);
  return value.bits & Type::kSign ? -size : size;
}
template <typename T>
std::enable_if_t<std::is_integral<T>::value, double> Wide(T value) {
  return static_cast<double>(value);
}

void Narrow(double value, float* to) { *to = static_cast<float>(value); }
void Narrow(double value, double* to) { *to = value; }
void Narrow(double value, BFloat16* to) {  // to nearest, ties to even
  float wide = static_cast<float>(value);
  uint32_t bits;
  memcpy(&bits, &wide, sizeof bits);
  if (std::isfinite(wide)) bits += 0x7fff + (bits >> 16 & 1);
  to->bits = static_cast<uint16_t>(bits >> 16);
}
template <typename Bits, int kFractionBits, int kBias, bool kInfinite>
void Narrow(double value, ShortFloat<Bits, kFractionBits, kBias, kInfinite>* to) {
  using Type = std::remove_pointer_t<decltype(to)>;
  int exponent, bits = std::isnan(value) ? Type::kNan : Type::kSpecial;
  if (std::abs(value) < std::ldexp(1.0, Type::kHighest)) {
    std::frexp(value, &exponent);
    int lowest = std::max(exponent - Type::kDigits, Type::kLowest);
    int fraction = static_cast<int>(std::lrint(std::ldexp(std::abs(value), -lowest)));
    bits = std::min((lowest - Type::kLowest) * Type::kFraction + fraction, Type::kSpecial);
  }
  to->bits = static_cast<Bits>(bits | (std::signbit(value) ? Type::kSign : 0));
}
template <typename T>
std::enable_if_t<std::is_integral<T>::value> Narrow(double, T*) {}

// Calls `use` with a value of the C++ type of a TF_DataType; false for what is none of a kernel's.
template <typename Use>
bool WithType(int type, Use use) {
  switch (type) {
    case 1: return use(float{}), true;
    case 2: return use(double{}), true;
    case 14: return use(BFloat16{}), true;
    case 19: return use(Half{}), true;
    case 24: return use(Float8E5M2{}), true;
    case 25: return use(Float8E4M3{}), true;
    case 3: return use(int32_t{}), true;
    case 4: return use(uint8_t{}), true;
    case 5: return use(int16_t{}), true;
    case 6: return use(int8_t{}), true;
    case 9: return use(int64_t{}), true;
    case 10: return use(uint8_t{}), true;  // bool
    case 17: return use(uint16_t{}), true;
    case 22: return use(uint32_t{}), true;
    case 23: return use(uint64_t{}), true;
    default: return false;
  }
}

// Of float types: the distance from 1 to the next value, and what counts as nothing.
struct Float {
  double unit = 0, least = 0;
};
Float FloatOf(int type) {
  switch (type) {
    case 1: return {0x1p-23, 0x1p-125};
    case 2: return {0x1p-52, 0x1p-1021};
    case 14: return {0x1p-7, 0x1p-125};
    case 19: return {0x1p-10, 0x1p-14};
    case 24: return {0x1p-2, 0x1p-16};
    case 25: return {0x1p-3, 0x1p-9};
    default: return {};
  }
}

size_t BytesOf(int type) {
  size_t bytes = 0;
  WithType(type, [&](auto value) { bytes = sizeof value; });
  return bytes;
}

// Anonymous memory, zero until it is written.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    if (bytes_ == 0) return;
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = data == MAP_FAILED ? nullptr : static_cast<char*>(data);
  }
  Memory(Memory&& other) noexcept : bytes_(other.bytes_), data_(other.data_) {
    other.data_ = nullptr;
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  bool ok() const { return bytes_ == 0 || data_ != nullptr; }
  char* data() const { return data_; }
  void SmallPages() const { if (data_ != nullptr) madvise(data_, bytes_, MADV_NOHUGEPAGE); }
  void Drop() { if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED); }
  // Of each page whether it has been written since the last Drop.
  std::vector<unsigned char> Resident() const {
    std::vector<unsigned char> pages(bytes_ / kPage, 1);
    if (data_ != nullptr) mincore(data_, bytes_, pages.data());
    return pages;
  }

 private:
  size_t bytes_;
  char* data_ = nullptr;
};

// An element beyond its tolerance, and how far it moves by another rounding.
struct Suspect {
  size_t result, element;
  double ours, theirs, tolerated;
  uint64_t bits;
  double moved = 0;
  bool turned = false;  // to another integer, or to or from what is no number
  double drawn = 0;
  uint64_t drawn_bits = 0;

  double allowed() const { return tolerated + kTimes * moved; }
  bool explained() const { return turned || std::abs(ours - theirs) <= allowed(); }
};

template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

class Comparison {
 public:
  explicit Comparison(Shadow shadow)
      : shadow_(std::move(shadow)),
        seen_(shadow_.results.size()),
        scratch_(shadow_.scratch),
        early_(shadow_.results.size()),
        scale_(shadow_.results.size()) {
    size_t whole = 0;
    for (const ShadowInput& input : shadow_.inputs) {
      buffers_.push_back(const_cast<void*>(input.data));
    }
    for (const ShadowResult& result : shadow_.results) {
      if (result.moved != nullptr) asked_ = true, result.moved->assign(Count(result), 0);
      own_.emplace_back(result.bytes);
      buffers_.push_back(result.kept != nullptr ? result.kept : own_.back().data());
      if (result.kept == nullptr) whole += result.bytes;
    }
    if (whole <= shadow_.budget || shadow_.tasks.empty()) return;
    slices_ = std::min<int64_t>(shadow_.tasks.back(), whole / (shadow_.budget / 2) + 1);
    for (const Memory& memory : own_) memory.SmallPages();
  }

  Proof Run(std::string* said) {
    bool ok = scratch_.ok();
    for (const Memory& memory : own_) ok = ok && memory.ok();
    if (!ok || !RunEarly(shadow_.run) || !CompareAll()) return Proof::kUndecided;
    auto order = [](const Suspect& a, const Suspect& b) { return a.result < b.result; };
    std::stable_sort(suspects_.begin(), suspects_.end(), order);
    for (size_t i = 0; i < own_.size(); i++) {  // what is kept stays as it is
      buffers_[shadow_.inputs.size() + i] = own_[i].data();
    }
    bool chained = std::any_of(shadow_.inputs.begin(), shadow_.inputs.end(),
                               [](const ShadowInput& one) { return one.moved != nullptr; });
    int asked = !asked_ ? 0 : chained ? kChainedDraws : kKeptDraws;
    auto due = [&](int draw) { return draw < asked || Unexplained() != suspects_.end(); };
    for (int draw = 0; draw < kDraws && due(draw); draw++) Draw(draw);
    if (Unexplained() == suspects_.end()) return Proof::kAgrees;
    *said = Told(*Unexplained());
    return Proof::kDiffers;
  }

 private:
  static size_t Count(const ShadowResult& result) {
    size_t bytes = BytesOf(result.type);
    return bytes > 0 ? result.bytes / bytes : 0;
  }
  size_t Elements(size_t result) const {
    return shadow_.results[result].compared ? Count(shadow_.results[result]) : 0;
  }
  const void* Made(size_t result) const { return buffers_[shadow_.inputs.size() + result]; }
  // Whether it is looked at by slices. What phases before the last have begun is not.
  bool Sliced(size_t result) const { return slices_ > 1 && !early_[result]; }

  // The root mean square of what is finite.
  static double Scale(const ShadowResult& result) {
    if (FloatOf(result.type).unit == 0) return 0;
    double sum = 0;
    size_t count = 0;
    WithType(result.type, [&](auto type) {
      auto* values = static_cast<const decltype(type)*>(result.theirs);
      for (size_t i = 0; i < result.bytes / sizeof type; i++) {
        double value = Wide(values[i]);
        if (std::isfinite(value)) sum += value * value, count++;
      }
    });
    return count == 0 || !std::isfinite(sum) ? 0 : std::sqrt(sum / static_cast<double>(count));
  }

  double Tolerated(size_t result, double theirs) const {
    const ShadowResult& one = shadow_.results[result];
    Float kind = FloatOf(one.type);
    if (kind.unit == 0 || !std::isfinite(theirs)) return 0;
    double own = one.tolerance > 0 ? one.tolerance : std::min(0.0625, 1024 * kind.unit);
    return own * (std::abs(theirs) + scale_[result]) + kind.least;
  }

  // The phases before the last.
  template <typename Run>
  bool RunEarly(const Run& run) {
    for (size_t phase = 0; phase + 1 < shadow_.tasks.size(); phase++) {
      int64_t tasks = shadow_.tasks[phase];
      if (run(buffers_.data(), scratch_.data(), phase, 0, tasks) != 0) return false;
    }
    for (size_t i = 0; slices_ > 1 && i < own_.size(); i++) {
      early_[i] = shadow_.results[i].kept != nullptr || Any(own_[i].Resident());
    }
    return true;
  }

  // The last phase by slices, those for which `due` says so, and `look` after each, before its
  // pages are given back.
  template <typename Run, typename Due, typename Look>
  bool RunSlices(const Run& run, const Due& due, const Look& look) {
    size_t last = shadow_.tasks.size() - 1;
    int64_t tasks = shadow_.tasks.empty() ? 0 : shadow_.tasks[last];
    for (int64_t slice = 0; slice < slices_; slice++) {
      if (!due(slice)) continue;
      int64_t step = (tasks + slices_ - 1) / slices_;
      int64_t begin = std::min(tasks, slice * step), end = std::min(tasks, begin + step);
      if (begin < end && run(buffers_.data(), scratch_.data(), last, begin, end) != 0) return false;
      look(slice);
      for (size_t i = 0; i < own_.size(); i++) {
        if (Sliced(i)) own_[i].Drop();
      }
    }
    return true;
  }

  static bool Any(const std::vector<unsigned char>& resident) {
    return std::any_of(resident.begin(), resident.end(), [](unsigned char p) { return p & 1; });
  }

  // All results; where TensorFlow's are to be fetched a few at a time, each of these over the
  // slices that write them. False where that cannot be.
  bool CompareAll() {
    auto all = [](int64_t) { return true; };
    std::vector<std::vector<size_t>> groups(1);
    std::vector<std::vector<bool>> writes;  // by slice and result
    if (shadow_.fetch) {
      writes.assign(slices_, std::vector<bool>(own_.size()));
      auto note = [&](int64_t slice) {
        for (size_t i = 0; i < own_.size(); i++) {
          writes[slice][i] = !Sliced(i) || Any(own_[i].Resident());
        }
      };
      if (!RunSlices(shadow_.run, all, note)) return false;
    }
    size_t held = 0;
    for (size_t i = 0; i < own_.size(); i++) {
      if (Elements(i) == 0) continue;
      held += shadow_.results[i].bytes;
      if (shadow_.fetch && held > shadow_.budget / 2 && !groups.back().empty()) {
        groups.emplace_back(), held = shadow_.results[i].bytes;
      }
      groups.back().push_back(i);
    }
    for (const std::vector<size_t>& group : groups) {
      if (shadow_.fetch && !shadow_.fetch(group, &shadow_.results)) return false;
      for (size_t i : group) {
        scale_[i] = Scale(shadow_.results[i]);
        if (Sliced(i)) seen_[i].resize(Elements(i));
      }
      // The last phase may have changed what an earlier one has made.
      bool again = shadow_.fetch && std::find(early_.begin(), early_.end(), true) != early_.end();
      if (again && !RunEarly(shadow_.run)) return false;
      auto due = [&](int64_t slice) {
        return writes.empty() || std::any_of(group.begin(), group.end(),
                                             [&](size_t i) { return writes[slice][i]; });
      };
      if (!RunSlices(shadow_.run, due, [&](int64_t) { CollectWritten(group); })) return false;
      CollectUnseen(group);
    }
    return true;
  }

  // Takes in what a slice has written: values that are TensorFlow's, and those that are not. Its
  // zeros tell nothing: they may not have been written yet.
  void CollectWritten(const std::vector<size_t>& group) {
    for (size_t i : group) {
      if (!Sliced(i)) continue;
      WithType(shadow_.results[i].type, [&](auto type) {
        size_t size = sizeof type, bytes = shadow_.results[i].bytes;
        std::vector<unsigned char> resident = own_[i].Resident();
        for (size_t page = 0; page < resident.size(); page++) {
          if (!(resident[page] & 1)) continue;
          Collect(type, i, page * kPage / size, std::min((page + 1) * kPage, bytes) / size);
        }
      });
    }
  }

  template <typename T>
  void Collect(T, size_t result, size_t begin, size_t end) {
    auto* ours = static_cast<const T*>(Made(result));
    auto* theirs = static_cast<const T*>(shadow_.results[result].theirs);
    for (size_t e = begin; e < end; e++) {
      if (Sliced(result)) {
        if (seen_[result][e] || Bits(ours[e]) == 0) continue;
        seen_[result][e] = true;
      }
      if (memcmp(ours + e, theirs + e, sizeof(T)) == 0 && !Faulty(result, e)) continue;
      Compare(result, e, Given(result, e, Wide(ours[e])), Wide(theirs[e]), Bits(ours[e]));
    }
  }

  // What no slice has written, or all have written as zero; and what is not looked at by slices.
  void CollectUnseen(const std::vector<size_t>& group) {
    for (size_t i : group) {
      WithType(shadow_.results[i].type, [&](auto type) {
        if (!Sliced(i)) return Collect(type, i, 0, Elements(i));
        auto* theirs = static_cast<const decltype(type)*>(shadow_.results[i].theirs);
        for (size_t e = 0; e < seen_[i].size(); e++) {
          if (!seen_[i][e]) Compare(i, e, Given(i, e, 0), Wide(theirs[e]), 0);
        }
      });
      std::vector<bool>().swap(seen_[i]);
    }
  }

  // Of very many suspects every second, fourth, ... is kept.
  void Compare(size_t result, size_t element, double ours, double theirs, uint64_t bits) {
    double tolerated = Tolerated(result, theirs);
    bool same = ours == theirs || (std::isnan(ours) && std::isnan(theirs));
    bool exact = FloatOf(shadow_.results[result].type).unit == 0;
    if (exact ? same && std::abs(ours) < 0x1p53 : same || std::abs(ours - theirs) <= tolerated) {
      return;
    }
    if (count_++ % stride_ != 0) return;
    if (suspects_.size() == kMostSuspects) {
      for (size_t i = 0; i < kMostSuspects / 2; i++) suspects_[i] = suspects_[2 * i];
      suspects_.resize(kMostSuspects / 2, suspects_[0]);
      stride_ *= 2;
    }
    suspects_.push_back({result, element, ours, theirs, tolerated, bits});
  }

  // The fault on purpose: the first element that is compared.
  bool Faulty(size_t result, size_t element) const {
    if (!shadow_.wrong || element != 0) return false;
    for (size_t i = 0; i < result; i++) {
      if (Elements(i) > 0) return false;
    }
    return true;
  }
  double Given(size_t result, size_t element, double value) const {
    return Faulty(result, element) ? 1 + 1.5 * value : value;
  }

  std::vector<Suspect>::iterator Unexplained() {
    return std::find_if(suspects_.begin(), suspects_.end(),
                        [](const Suspect& one) { return !one.explained(); });
  }

  // Runs the kernel again with another rounding of what it computes, later on inputs that are off
  // by theirs too, and notes how far each suspect moves, and what is kept.
  void Draw(int draw) {
    unsigned saved = __builtin_ia32_stmxcsr();
    unsigned mode = (saved & ~kRoundingBits) | static_cast<unsigned>((draw + 1) % 4) << 13;
    std::vector<Memory> moved;
    std::vector<void*> given(buffers_);
    double share = draw < kRoundings ? 1 : Move(draw, &moved);
    for (Suspect& one : suspects_) one.drawn = 0, one.drawn_bits = 0;
    auto run = [&](void* const* buffers, char* scratch, int64_t phase, int64_t begin,
                   int64_t end) {
      __builtin_ia32_ldmxcsr(mode);
      int64_t failed = shadow_.kernel(buffers, shadow_.symbols, scratch, phase, begin, end);
      __builtin_ia32_ldmxcsr(saved);
      return failed;
    };
    for (Memory& memory : own_) memory.Drop();
    bool ran = RunEarly(run) && RunSlices(run, [](int64_t) { return true; },
                                          [this](int64_t) { Take(); });
    buffers_ = given;
    if (!ran) return;  // a check that fails by another rounding tells nothing
    for (Suspect& one : suspects_) {
      bool exact = FloatOf(shadow_.results[one.result].type).unit == 0;
      double distance = std::abs(Given(one.result, one.element, one.drawn) - one.ours);
      if (!exact && std::isfinite(distance)) {
        one.moved = std::max(one.moved, distance * share);
      } else if (one.drawn_bits != one.bits && (exact || !std::isfinite(one.theirs - one.ours))) {
        one.turned = true;
      }
    }
    for (size_t i = 0; i < own_.size(); i++) {
      if (shadow_.results[i].moved != nullptr) NoteMoved(i, share);
    }
  }

  void NoteMoved(size_t result, double share) {
    const ShadowResult& one = shadow_.results[result];
    WithType(one.type, [&](auto type) {
      auto* drawn = reinterpret_cast<const decltype(type)*>(own_[result].data());
      auto* kept = static_cast<const decltype(type)*>(one.kept);
      for (size_t e = 0; e < one.moved->size(); e++) {
        auto distance = static_cast<float>(std::abs(Wide(drawn[e]) - Wide(kept[e])) * share);
        if (std::isfinite(distance)) (*one.moved)[e] = std::max((*one.moved)[e], distance);
      }
    });
  }

  void Take() {
    std::vector<std::vector<unsigned char>> resident(own_.size());
    for (size_t i = 0; i < own_.size(); i++) {
      if (Sliced(i)) resident[i] = own_[i].Resident();
    }
    for (Suspect& one : suspects_) {
      WithType(shadow_.results[one.result].type, [&](auto type) {
        auto* made = static_cast<const decltype(type)*>(Made(one.result)) + one.element;
        size_t page = one.element * sizeof type / kPage;
        if (Sliced(one.result) && (!(resident[one.result][page] & 1) || Bits(*made) == 0)) return;
        one.drawn = Wide(*made);
        one.drawn_bits = Bits(*made);
      });
    }
  }

  // Moves inputs by their rounding, each element up or down by chance: as many of them as the
  // budget has room for, others in the next draw; those of short types in every second, where
  // every second of these is the opposite of the one before: so few values lie within their unit
  // that one direction may show nothing. What an earlier kernel has made moves as far as it did
  // there besides: where a sum cancels, no share of it says how far another's may lie. Returns the
  // share of the results' movement that counts.
  double Move(int draw, std::vector<Memory>* moved) {
    bool both = HasInputs(true) && HasInputs(false);
    bool shorts = both ? draw % 2 == 0 : HasInputs(true);
    const Moves& moves = shorts ? kShortMoves : kWideMoves;
    int number = both ? draw / 2 : draw;
    double side = shorts && number % 2 == 1 ? -1 : 1;
    uint64_t seed = static_cast<uint64_t>(shorts ? number / 2 : draw) + 1;
    uint64_t random = 0x9e3779b97f4a7c15u * seed;
    size_t held = 0, count = shadow_.inputs.size();
    for (size_t k = 0; k < count; k++) {
      size_t i = (k + static_cast<size_t>(draw - kRoundings)) % count;
      const ShadowInput& input = shadow_.inputs[i];
      double unit = UnitOf(input);
      bool rounded = unit > 0 && IsShort(unit) == shorts;
      const float* own = shorts ? nullptr : input.moved;
      if (!rounded && own == nullptr) continue;
      if (held > 0 && held + input.bytes > shadow_.budget) continue;
      held += input.bytes;
      moved->emplace_back(input.bytes);
      if (!moved->back().ok() || input.bytes == 0) continue;
      double step = rounded ? side * unit * moves.units : 0;
      WithType(input.type, [&](auto type) {
        using T = decltype(type);
        auto* from = static_cast<const T*>(input.data);
        auto* to = reinterpret_cast<T*>(moved->back().data());
        for (size_t e = 0; e < input.bytes / sizeof(T); e++) {
          random ^= random << 13;  // xorshift64 (Marsaglia 2003)
          random ^= random >> 7;
          random ^= random << 17;
          double value = Wide(from[e]), off = std::isfinite(value) ? step * value : 0;
          if (own != nullptr) off += moves.units * own[e];
          Narrow(random >> 63 ? value + off : value - off, to + e);
        }
      });
      buffers_[i] = moved->back().data();
    }
    return moves.share;
  }
  static double UnitOf(const ShadowInput& input) {
    double own = FloatOf(input.type).unit;
    return own == 0 ? 0 : std::max(own, input.unit);
  }
  static bool IsShort(double unit) { return unit > 0x1p-20; }
  bool HasInputs(bool shorts) const {
    return std::any_of(shadow_.inputs.begin(), shadow_.inputs.end(), [&](const ShadowInput& one) {
      bool rounded = UnitOf(one) > 0 && IsShort(UnitOf(one)) == shorts;
      return rounded || (!shorts && one.moved != nullptr);
    });
  }

  std::string Told(const Suspect& one) const {
    char text[256];
    snprintf(text, sizeof text,
             "result %zu at element %zu: %.9g instead of %.9g, allowed %.3g; %zu beyond tolerance",
             one.result, one.element, one.ours, one.theirs, one.allowed(), count_);
    return text;
  }

  Shadow shadow_;
  std::vector<std::vector<bool>> seen_;  // by result: elements that a slice has written
  Memory scratch_;
  std::vector<bool> early_;
  std::vector<double> scale_;
  std::vector<Memory> own_;
  std::vector<void*> buffers_;
  int64_t slices_ = 1;
  std::vector<Suspect> suspects_;
  size_t count_ = 0, stride_ = 1;
  bool asked_ = false;  // whether somebody asks how far what is kept moves
};

}  // namespace

Proof Compare(Shadow shadow, std::string* said) {
  return Comparison(std::move(shadow)).Run(said);
}

size_t ShadowBudget() {
  long pages = 0;
  if (FILE* file = fopen("/proc/self/statm", "r")) {
    if (fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    fclose(file);
  }
  return std::max(kLeastBudget, static_cast<size_t>(pages) * kPage / kShare);
}

}  // namespace stitch
