// What tests tell the stand-in, and ask it.
#include <stdlib.h>
#include <string.h>

#include "standin.h"

using namespace standin;

namespace {

struct Graph {
  std::vector<Operation> operations;
};

char* Text(const std::vector<std::string>& lines) {
  std::string joined;
  for (const std::string& line : lines) joined += line + "\n";
  return strdup(joined.c_str());
}

}  // namespace

// `count` devices alike; version as cuDriverGetVersion says it.
STANDIN_API standin_devices(int count, int major, int minor, int multiprocessors, int cooperative,
                            int service, int version, int shared_optin) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  DeviceLimits limits{major, minor, multiprocessors, cooperative, service, shared_optin};
  Get().devices.assign(static_cast<size_t>(count), limits);
  Get().version = version;
  return 0;
}

// The `n`th call from now on returns `result`, and all later ones where `sticky`; 0: none does.
// Returns how many were counted before, negative where the call that was to fail has been made.
STANDIN_API standin_fail(int n, int result, int sticky) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  State& state = Get();
  int before = static_cast<int>(state.counted) * (state.failed ? -1 : 1);
  state.counted = 0;
  state.failed = false;
  state.fail_at = n;
  state.fail_with = result;
  state.sticky = sticky != 0;
  return before;
}

STANDIN_API standin_memory(unsigned long long bytes) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  return Get().free_bytes = bytes, 0;
}

STANDIN_API standin_callback(KernelCallback callback) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  return Get().callback = callback, 0;
}

STANDIN_API standin_begin_capture(void* handle) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  return Find(handle, "capture")->capture = 1, 0;
}

extern "C" __attribute__((visibility("default"))) void* standin_end_capture(void* handle) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  Stream* stream = Find(handle, "capture");
  auto* graph = new Graph{std::move(stream->captured)};
  stream->captured.clear();
  stream->capture = 0;
  return graph;
}

STANDIN_API standin_launch_graph(void* graph, void* handle) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  for (const Operation& one : static_cast<Graph*>(graph)->operations) {
    Push(Find(handle, "graph"), one);
  }
  return 0;
}

STANDIN_API standin_end_graph(void* graph) { return delete static_cast<Graph*>(graph), 0; }

// Objects that are still there: modules, device blocks, pinned blocks, events, retained primary
// contexts, contexts current in this thread.
STANDIN_API standin_live(int64_t out[6]) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  State& state = Get();
  int64_t retained = 0;
  for (auto& [handle, context] : state.contexts) retained += context.retained;
  const int64_t values[6] = {static_cast<int64_t>(state.modules.size()),
                             static_cast<int64_t>(state.memory.size()),
                             static_cast<int64_t>(state.pinned.size()),
                             static_cast<int64_t>(state.events.size()),
                             retained,
                             static_cast<int64_t>(ContextStack().size())};
  memcpy(out, values, sizeof values);
  return 0;
}

// Complaints, or names of calls, since the last time; to be freed by standin_free.
extern "C" __attribute__((visibility("default"))) char* standin_errors() {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  char* text = Text(Get().errors);
  Get().errors.clear();
  return text;
}

extern "C" __attribute__((visibility("default"))) char* standin_calls() {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  char* text = Text(Get().calls);
  Get().calls.clear();
  return text;
}

extern "C" __attribute__((visibility("default"))) void standin_free(char* text) { free(text); }
