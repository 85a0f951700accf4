// Compares kernels of its own with results of its own (shadow.cc). Commands on stdin, one a line:
// "CASE BUDGET TOLERANCE". The answer: "agrees", "undecided", or "differs: WHAT", then the most KiB
// that were resident more than before, TAB between them.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <sstream>

#include "shadow.h"

namespace {

using stitch::Shadow;
constexpr int kFloat = 1, kInt32 = 3, kFloat8E5M2 = 24, kFloat8E4M3 = 25;
constexpr int64_t kRows = 64, kColumns = 256, kAll = kRows * kColumns;
constexpr int64_t kLarge = int64_t{4} << 20;  // elements: 16 MiB

long peak = 0;
long Resident() {
  std::ifstream file("/proc/self/statm");
  long size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4;
}

// Each task is a row: its variance as the mean of squares less the mean's, in one order of the
// sums or the other.
template <bool kBackwards, bool kWrong>
int64_t Variance(void* const* buffers, const int64_t*, char*, int64_t, int64_t begin, int64_t end) {
  auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  for (int64_t row = begin; row < end; row++) {
    float sum = 0, squares = 0;
    for (int64_t i = kWrong ? 1 : 0; i < kColumns; i++) {
      float value = x[row * kColumns + (kBackwards ? kColumns - 1 - i : i)];
      sum += value, squares += value * value;
    }
    float mean = sum / kColumns;
    y[row] = squares / kColumns - mean * mean;
  }
  return 0;
}

using Element = float (*)(float, float);
template <Element kFunction>
int64_t Each(void* const* buffers, const int64_t*, char*, int64_t, int64_t begin, int64_t end) {
  auto* x = static_cast<const float*>(buffers[0]);
  auto* w = static_cast<const float*>(buffers[1]);
  auto* y = static_cast<float*>(buffers[2]);
  for (int64_t i = begin * kColumns; i < end * kColumns; i++) y[i] = kFunction(x[i], w[i]);
  return 0;
}

float Quotient(float x, float w) { return w / (x - 0.1f * 10); }
float QuotientOtherwise(float x, float w) { return w / ((x - 0.5f) - 0.5f); }
float QuotientWrong(float x, float w) { return -w / ((x - 0.5f) - 0.5f); }
float Gelu(float x, float w) { return w * (1 + std::tanh(x)); }
float GeluOtherwise(float x, float w) { return w * (2 - 2 / (std::exp(2 * x) + 1)); }
float GeluWrong(float x, float w) { return w * 1.001f * (1 + std::tanh(x)); }
float Root(float x, float w) { return std::sqrt(x * x - w * w); }
float RootOtherwise(float x, float w) { return std::sqrt((x - w) * (x + w)); }
float RootWrong(float x, float w) { return std::sqrt(std::abs((x - w) * (x + w)) + 0.01f); }
float Decided(float x, float w) { return (x + 1.0f) / 3.0f - w > 0 ? x : -x; }
float DecidedOtherwise(float x, float w) { return x / 3.0f + (1.0f / 3.0f - w) > 0 ? x : -x; }
float DecidedWrong(float x, float w) { return x / 3.0f + (1.0f / 3.0f - w) > 0.05f ? x : -x; }
// To the eight bits of bfloat16.
float Short(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  memcpy(&x, &bits, sizeof x);
  return x;
}
float Rounded(float x, float w) { return Short(x) - w; }
float RoundedOtherwise(float x, float w) { return Short(3 * Short(x / 3)) - w; }
float RoundedWrong(float x, float w) { return 1.25f * Short(x) - w; }
float Infinite(float x, float) { return x / 0.0f; }
float Largest(float x, float) { return std::copysign(3e38f, x); }
float Copied(float x, float w) { return 2 * x + w; }

template <Element kFunction>
int64_t Whole(void* const* buffers, const int64_t*, char*, int64_t, int64_t begin, int64_t end) {
  auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<int32_t*>(buffers[2]);
  for (int64_t i = begin * kColumns; i < end * kColumns; i++) {
    y[i] = static_cast<int32_t>(std::floor(kFunction(x[i], 0)));
  }
  return 0;
}
float Third(float x, float) { return x / 3.0f; }
float ThirdOtherwise(float x, float) { return x * (1.0f / 3.0f); }
float ThirdWrong(float x, float) { return x / 3.0f + 1; }

// Every float8 there is, one after the other; in place of one another.
template <int kOne, int kOther>
int64_t Codes(void* const* buffers, const int64_t*, char*, int64_t, int64_t begin, int64_t end) {
  auto* y = static_cast<uint8_t*>(buffers[2]);
  for (int64_t i = begin * kColumns; i < end * kColumns; i++) {
    y[i] = static_cast<uint8_t>(i % 256 == kOne ? kOther : i % 256);
  }
  return 0;
}

int64_t Checked(void* const*, const int64_t*, char*, int64_t, int64_t, int64_t) { return 1; }

// The first phase leaves a sum where the second reads it; the last element is wrong, or not made.
enum class Last { kRight, kWrong, kLeft };
template <Last kLast, bool kSum>
int64_t Phases(void* const* buffers, const int64_t*, char*, int64_t phase, int64_t begin,
               int64_t end) {
  auto* x = static_cast<const float*>(buffers[0]);
  auto* w = static_cast<const float*>(buffers[1]);
  auto* y = static_cast<float*>(buffers[2]);
  auto* sum = static_cast<float*>(buffers[3]);
  if (kSum && phase == 0) {
    for (int64_t i = 0; i < kColumns; i++) *sum += x[i];
    return 0;
  }
  for (int64_t i = begin * kColumns; i < end * kColumns; i++) {
    bool last = i == kLarge - 1;
    if (last && kLast == Last::kLeft) continue;
    y[i] = 2 * x[i] + w[i] + (kSum ? *sum : 0) + (last && kLast == Last::kWrong ? 0.01f : 0);
  }
  return 0;
}

// The sum of each column, from the first row or from the last.
template <bool kBackwards>
int64_t Sums(void* const* buffers, const int64_t*, char*, int64_t, int64_t, int64_t) {
  auto* x = static_cast<const float*>(buffers[0]);
  auto* sums = static_cast<float*>(buffers[1]);
  for (int64_t column = 0; column < kColumns; column++) {
    float sum = 0;
    for (int64_t row = 0; row < kRows; row++) {
      sum += x[(kBackwards ? kRows - 1 - row : row) * kColumns + column];
    }
    sums[column] = sum;
  }
  return 0;
}

template <bool kWrong>
int64_t Tenth(void* const* buffers, const int64_t*, char*, int64_t, int64_t, int64_t) {
  auto* sums = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  for (int64_t i = 0; i < kColumns; i++) {
    y[i] = (kWrong && i == kColumns - 1 ? 0.101f : 0.1f) * sums[i];
  }
  return 0;
}

struct Case {
  stitch::Kernel ours, theirs;
  int type;         // of the results
  int64_t results;  // elements
  std::function<void(std::vector<float>*, std::vector<float>*)> fill;
  std::vector<int64_t> tasks = {kRows};
  double unit = 0;  // that x is rounded to
};

void Fill(std::vector<float>* values, float mean, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  for (float& value : *values) value = normal(random);
}

std::map<std::string, Case> Cases() {
  auto constant = [](auto* x, auto*) { Fill(x, 1000.0f, 0.01f, 1); };
  auto spread = [](auto* x, auto*) { Fill(x, 1.0f, 1.0f, 1); };
  auto almost = [](auto* x, auto* w) {
    Fill(x, 1.0f, 1.0f, 1), Fill(w, 0.0f, 1.0f, 2);
    for (int i = 0; i < 40; i++) (*x)[i * 5] = 1.0f + 0x1p-22f * static_cast<float>(i - 20);
  };
  auto large = [](auto* x, auto* w) { Fill(x, -9.0f, 0.5f, 1), Fill(w, 0.0f, 1.0f, 2); };
  auto equal = [](auto* x, auto* w) { Fill(x, 3.0f, 1.0f, 1), *w = *x; };
  auto undecided = [](auto* x, auto* w) {
    Fill(x, 0.0f, 1.0f, 1);
    for (size_t i = 0; i < x->size(); i++) (*w)[i] = ((*x)[i] + 1.0f) / 3.0f;
  };
  auto thirds = [](auto* x, auto*) {
    for (size_t i = 0; i < x->size(); i++) (*x)[i] = static_cast<float>(i);
  };
  auto plain = [](auto* x, auto* w) {
    Fill(x, 0.0f, 1.0f, 1), Fill(w, 0.0f, 1.0f, 2);
  };
  auto zero = [](auto* x, auto* w) { x->assign(x->size(), 0.0f), w->assign(w->size(), 0.0f); };
  int64_t all = kLarge / kColumns;
  std::map<std::string, Case> cases = {
      {"variance", {Variance<true, false>, Variance<false, false>, kFloat, kRows, constant}},
      {"variance_wrong", {Variance<true, true>, Variance<false, false>, kFloat, kRows, spread}},
      {"quotient", {Each<QuotientOtherwise>, Each<Quotient>, kFloat, kAll, almost}},
      {"quotient_wrong", {Each<QuotientWrong>, Each<Quotient>, kFloat, kAll, almost}},
      {"gelu", {Each<GeluOtherwise>, Each<Gelu>, kFloat, kAll, large}},
      {"gelu_wrong", {Each<GeluWrong>, Each<Gelu>, kFloat, kAll, plain}},
      {"root", {Each<RootOtherwise>, Each<Root>, kFloat, kAll, equal}},
      {"root_wrong", {Each<RootWrong>, Each<Root>, kFloat, kAll, equal}},
      {"decided", {Each<DecidedOtherwise>, Each<Decided>, kFloat, kAll, undecided}},
      {"decided_wrong", {Each<DecidedWrong>, Each<Decided>, kFloat, kAll, plain}},
      {"floor", {Whole<ThirdOtherwise>, Whole<Third>, kInt32, kAll, thirds}},
      {"floor_wrong", {Whole<ThirdWrong>, Whole<Third>, kInt32, kAll, thirds}},
      {"rounded", {Each<RoundedOtherwise>, Each<Rounded>, kFloat, kAll, equal, {kRows}, 0x1p-7}},
      {"rounded_wrong", {Each<RoundedWrong>, Each<Rounded>, kFloat, kAll, equal, {kRows}, 0x1p-7}},
      {"rounded_unsaid", {Each<RoundedOtherwise>, Each<Rounded>, kFloat, kAll, equal}},
      {"infinite_wrong", {Each<Largest>, Each<Infinite>, kFloat, kAll, plain}},
      {"e4m3", {Codes<0, 0>, Codes<0, 0>, kFloat8E4M3, kAll, plain}},
      {"e4m3_saturated", {Codes<0x7f, 0x7e>, Codes<0, 0>, kFloat8E4M3, kAll, plain}},
      {"e4m3_flushed", {Codes<2, 0>, Codes<0, 0>, kFloat8E4M3, kAll, plain}},
      {"e5m2", {Codes<0, 0>, Codes<0, 0>, kFloat8E5M2, kAll, plain}},
      {"e5m2_saturated", {Codes<0x7c, 0x7b>, Codes<0, 0>, kFloat8E5M2, kAll, plain}},
      {"e5m2_nan", {Codes<0x7c, 0x7d>, Codes<0, 0>, kFloat8E5M2, kAll, plain}},
      {"checked", {Checked, Each<Copied>, kFloat, kAll, plain}},
      {"large", {Phases<Last::kRight, false>, nullptr, kFloat, kLarge, plain, {all}}},
      {"large_wrong", {Phases<Last::kWrong, false>, nullptr, kFloat, kLarge, plain, {all}}},
      {"large_left", {Phases<Last::kLeft, false>, nullptr, kFloat, kLarge, plain, {all}}},
      {"zero_wrong", {Phases<Last::kWrong, false>, nullptr, kFloat, kLarge, zero, {all}}},
      {"phases", {Phases<Last::kRight, true>, nullptr, kFloat, kLarge, plain, {1, all}}},
      {"phases_wrong", {Phases<Last::kWrong, true>, nullptr, kFloat, kLarge, plain, {1, all}}},
  };
  return cases;
}

std::string Word(stitch::Proof proof, const std::string& said) {
  return proof == stitch::Proof::kAgrees      ? "agrees"
         : proof == stitch::Proof::kUndecided ? "undecided"
                                              : "differs: " + said;
}

std::string Answer(const std::string& name, size_t budget, double tolerance) {
  Case one = Cases().at(name);
  int64_t elements = std::max(one.results, kAll);
  bool rows = one.results == kRows;
  std::vector<float> x(elements), w(elements), theirs(elements), sum(1);
  one.fill(&x, &w);
  std::vector<void*> buffers = {x.data(), w.data(), theirs.data(), sum.data()};
  if (rows) buffers.erase(buffers.begin() + 1);
  stitch::Kernel right = one.tasks.size() > 1 ? Phases<Last::kRight, true>
                                              : Phases<Last::kRight, false>;
  for (size_t phase = 0; phase < one.tasks.size(); phase++) {
    (one.theirs != nullptr ? one.theirs : right)(buffers.data(), nullptr, nullptr, phase, 0,
                                                 one.tasks[phase]);
  }
  long before = Resident();
  peak = before;
  Shadow shadow{one.ours, {}, {}, nullptr, 0, one.tasks, budget, false, {}, {}};
  shadow.inputs.push_back({kFloat, x.data(), x.size() * 4, one.unit});
  if (!rows) shadow.inputs.push_back({kFloat, w.data(), w.size() * 4, 0});
  size_t bytes = static_cast<size_t>(one.results) * (one.type >= kFloat8E5M2 ? 1 : 4);
  shadow.results.push_back({one.type, bytes, true, theirs.data(), nullptr, tolerance});
  shadow.results.push_back({kFloat, 4, true, sum.data(), nullptr, tolerance});
  shadow.run = [&](void* const* given, char* scratch, int64_t phase, int64_t begin, int64_t end) {
    int64_t failed = one.ours(given, nullptr, scratch, phase, begin, end);
    peak = std::max(peak, Resident());
    return failed;
  };
  std::string said;
  stitch::Proof proof = stitch::Compare(std::move(shadow), &said);
  return Word(proof, said) + "\t" + std::to_string(peak - before);
}

// Two kernels: what the first makes, sums of which every second cancels, is no tensor of the
// framework's, and the second is held against results of the framework's own sums.
std::string Handed(bool told, bool wrong, double tolerance) {
  std::vector<float> x(kAll), ours(kColumns), theirs(kColumns), y(kColumns), moved;
  Fill(&x, 1.0f, 0.1f, 1);
  for (int64_t i = 0; i < kAll; i += 2) x[i] *= i < kAll / 2 ? 3e4f : 0.0f;
  for (int64_t i = 0; i < kAll / 2; i += 2) {
    x[kAll / 2 + (i / kColumns * 5 + 3) % (kRows / 2) * kColumns + i % kColumns] = -x[i];
  }
  stitch::Kernel second = wrong ? Tenth<true> : Tenth<false>;
  std::string said;
  Shadow first{Sums<true>, {}, {}, nullptr, 0, {1}, 1 << 30, false, {}, {}};
  first.inputs.push_back({kFloat, x.data(), x.size() * 4, 0});
  first.results.push_back({kFloat, ours.size() * 4, false, nullptr, ours.data(), 0, &moved});
  first.run = [&](void* const* given, char* scratch, int64_t phase, int64_t begin, int64_t end) {
    return Sums<true>(given, nullptr, scratch, phase, begin, end);
  };
  if (stitch::Compare(std::move(first), &said) != stitch::Proof::kAgrees) return said;
  std::vector<void*> buffers = {x.data(), theirs.data()};
  Sums<false>(buffers.data(), nullptr, nullptr, 0, 0, 1);
  buffers = {theirs.data(), y.data()};
  Tenth<false>(buffers.data(), nullptr, nullptr, 0, 0, 1);
  Shadow then{second, {}, {}, nullptr, 0, {1}, 1 << 30, false, {}, {}};
  then.inputs.push_back({kFloat, ours.data(), ours.size() * 4, 0, told ? moved.data() : nullptr});
  then.results.push_back({kFloat, y.size() * 4, true, y.data(), nullptr, tolerance});
  then.run = [&](void* const* given, char* scratch, int64_t phase, int64_t begin, int64_t end) {
    return second(given, nullptr, scratch, phase, begin, end);
  };
  stitch::Proof proof = stitch::Compare(std::move(then), &said);
  return Word(proof, said) + "\t0";
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    std::string name;
    size_t budget = 0;
    double tolerance = 0;
    text >> name >> budget >> tolerance;
    bool handed = name.rfind("handed", 0) == 0;
    std::cout << (handed ? Handed(name != "handed_untold", name == "handed_wrong", tolerance)
                         : Answer(name, budget, tolerance))
              << std::endl;
  }
}
