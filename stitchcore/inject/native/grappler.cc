// TF_InitGraph: the Grappler optimizer. Hands each graph to the callback and returns its answer;
// TF_ABORTED tells the meta optimizer that nothing changed.
#include "tensorflow/c/experimental/grappler/grappler.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <string>
#include <vector>

#include "exports.h"
#include "tensorflow/c/c_api.h"

namespace {

std::atomic<StitchGraphCallback> graph_callback{nullptr};

// The meta optimizer calls each optimizer object once per iteration, normally twice; the last
// graph is the one to answer (docs/decisions.md 20). A job may have asked for one iteration only:
// seen when an object with a real graph dies after one call. So does one whose graph nothing
// changes (reads of variables); in one with gradients something always does.
constexpr size_t kSmallGraph = 4096;  // bytes; smaller graphs hold nothing worth stitching
constexpr char kGradients[] = "gradient";
std::atomic<bool> single_iteration{false};

struct Optimizer {
  int calls = 0;
  bool trains = false;
};

void* CreateOptimizer() { return new Optimizer; }

void DestroyOptimizer(void* opaque) {
  auto* optimizer = static_cast<Optimizer*>(opaque);
  if (optimizer->calls == 1 && optimizer->trains) single_iteration = true;
  delete optimizer;
}

void FreeBuffer(void* data, size_t) { free(data); }

void Optimize(void* opaque, const TF_Buffer* graph, const TF_GrapplerItem* item,
              TF_Buffer* optimized, TF_Status* status) {
  auto* optimizer = static_cast<Optimizer*>(opaque);
  optimizer->calls++;
  if (graph->length >= kSmallGraph) {
    const void* name = memmem(graph->data, graph->length, kGradients, strlen(kGradients));
    optimizer->trains |= name != nullptr;
  }
  StitchGraphCallback callback = graph_callback.load();
  bool answer = optimizer->calls == (single_iteration ? 1 : 2);
  char* replaced = nullptr;
  size_t size = 0;
  if (answer && callback != nullptr &&
      callback(static_cast<const char*>(graph->data), graph->length, item, &replaced, &size) == 1) {
    optimized->data = replaced;
    optimized->length = size;
    optimized->data_deallocator = FreeBuffer;
    TF_SetStatus(status, TF_OK, "");
    return;
  }
  TF_SetStatus(status, TF_ABORTED, "stitch: unchanged");
}

// These live in libtensorflow_cc, which is loaded but is not a link dependency of plug-ins.
void* Find(const char* name) {
  for (const char* library : {"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"}) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    void* symbol = handle == nullptr ? nullptr : dlsym(handle, name);
    if (symbol != nullptr) return symbol;
  }
  return dlsym(RTLD_DEFAULT, name);
}

struct GrapplerApi {
  decltype(&TF_GetNodesToPreserveListSize) preserve_size;
  decltype(&TF_GetNodesToPreserveList) preserve;
  decltype(&TF_GetFetchNodesListSize) fetch_size;
  decltype(&TF_GetFetchNodesList) fetch;
  decltype(&TF_NewGraphProperties) properties;
  decltype(&TF_DeleteGraphProperties) delete_properties;
  decltype(&TF_InferStatically) infer;
  decltype(&TF_GetOutputPropertiesListSize) outputs_size;
  decltype(&TF_GetOutputPropertiesList) outputs;
  bool complete = true;

  template <typename F>
  void Load(F* function, const char* name) {
    *function = reinterpret_cast<F>(Find(name));
    complete = complete && *function != nullptr;
  }

  GrapplerApi() {
    Load(&preserve_size, "TF_GetNodesToPreserveListSize");
    Load(&preserve, "TF_GetNodesToPreserveList");
    Load(&fetch_size, "TF_GetFetchNodesListSize");
    Load(&fetch, "TF_GetFetchNodesList");
    Load(&properties, "TF_NewGraphProperties");
    Load(&delete_properties, "TF_DeleteGraphProperties");
    Load(&infer, "TF_InferStatically");
    Load(&outputs_size, "TF_GetOutputPropertiesListSize");
    Load(&outputs, "TF_GetOutputPropertiesList");
  }
};

const GrapplerApi& Api() {
  static const GrapplerApi api;
  return api;
}

char* Copy(const std::string& text) {
  auto* copy = static_cast<char*>(malloc(text.size() + 1));
  if (copy != nullptr) memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

// Appends [u32 node][u32 output][u32 length][proto] for each output of `name`.
void AppendShapes(TF_GraphProperties* properties, uint32_t node, const std::string& name,
                  TF_Status* status, std::string* records) {
  int count = 0;
  Api().outputs_size(properties, name.c_str(), &count, status);
  if (TF_GetCode(status) != TF_OK || count <= 0) return;
  std::vector<TF_Buffer*> buffers(count);
  for (TF_Buffer*& buffer : buffers) buffer = TF_NewBuffer();
  Api().outputs(properties, name.c_str(), buffers.data(), count, status);
  for (int i = 0; i < count; i++) {
    uint32_t head[3] = {node, static_cast<uint32_t>(i), static_cast<uint32_t>(buffers[i]->length)};
    if (TF_GetCode(status) == TF_OK) {
      records->append(reinterpret_cast<char*>(head), sizeof head);
      records->append(static_cast<const char*>(buffers[i]->data), buffers[i]->length);
    }
    TF_DeleteBuffer(buffers[i]);
  }
}

// A list of an item's, a name a line; null where TensorFlow does not tell.
char* Names(const void* opaque, decltype(GrapplerApi::preserve_size) size,
            decltype(GrapplerApi::preserve) list) {
  auto* item = static_cast<const TF_GrapplerItem*>(opaque);
  TF_Status* status = TF_NewStatus();
  int count = 0;
  size_t bytes = 0;
  size(item, &count, &bytes, status);
  std::vector<char*> names(count);
  std::vector<size_t> lengths(count);
  std::vector<char> storage(bytes + 1);
  list(item, names.data(), lengths.data(), count, storage.data(), bytes, status);
  std::string text;
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++) {
    text.append(names[i], lengths[i]).append("\n");
  }
  bool ok = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  return ok ? Copy(text) : nullptr;
}

}  // namespace

STITCH_EXPORT void TF_InitGraph(TP_OptimizerRegistrationParams* parameters, TF_Status* status) {
  parameters->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  parameters->device_type = "CPU";
  parameters->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  parameters->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  parameters->optimizer->create_func = CreateOptimizer;
  parameters->optimizer->optimize_func = Optimize;
  parameters->optimizer->destroy_func = DestroyOptimizer;
  TF_SetStatus(status, TF_OK, "");
}

void stitch_set_callback(StitchGraphCallback callback) { graph_callback = callback; }
void* stitch_allocate(size_t size) { return malloc(size); }
void stitch_free(void* buffer) { free(buffer); }

char* stitch_preserved(const void* item) {
  return Api().complete ? Names(item, Api().preserve_size, Api().preserve) : nullptr;
}

char* stitch_fetched(const void* item) {
  return Api().complete ? Names(item, Api().fetch_size, Api().fetch) : nullptr;
}

char* stitch_shapes(const void* opaque, const char* names, size_t* size) {
  if (!Api().complete) return nullptr;
  TF_Status* status = TF_NewStatus();
  TF_GraphProperties* properties = Api().properties(static_cast<const TF_GrapplerItem*>(opaque));
  // What a session is fed has the shape that the placeholder declares: else its rank would be
  // unknown, and nothing that hangs on it could be stitched. A launch checks what enters the graph.
  Api().infer(properties, /*assume_valid_feeds=*/1, /*aggressive_shape_inference=*/0,
              /*include_input_tensor_values=*/0, /*include_output_tensor_values=*/0, status);
  std::string records;
  bool ok = TF_GetCode(status) == TF_OK;
  uint32_t node = 0;
  for (const char* start = names; ok && *start != '\0'; node++) {
    const char* end = strchr(start, '\n');
    if (end == nullptr) break;
    AppendShapes(properties, node, std::string(start, end - start), status, &records);
    start = end + 1;
  }
  Api().delete_properties(properties);
  TF_DeleteStatus(status);
  *size = records.size();
  return ok ? Copy(records) : nullptr;
}
