// Attributes of a StitchedFusion node, checked and turned into what each call needs.
#include "fusion.h"

#include <stdio.h>

#include "exports.h"
#include "failures.h"
#include "faults.h"
#include "threads.h"

namespace stitch {
namespace {

// A list attribute, read by one of TF_OpKernelConstruction_GetAttr*List.
template <typename T, typename Get>
std::vector<T> List(TF_OpKernelConstruction* context, const char* name, Get get) {
  Status status;
  int32_t count = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(context, name, &count, &bytes, status.status);
  std::vector<T> values(count > 0 ? count : 0);
  if (count > 0) get(context, name, values.data(), count, status.status);
  return values;
}

std::vector<int64_t> Integers(TF_OpKernelConstruction* context, const char* name) {
  return List<int64_t>(context, name, TF_OpKernelConstruction_GetAttrInt64List);
}

std::vector<float> Floats(TF_OpKernelConstruction* context, const char* name) {
  return List<float>(context, name, TF_OpKernelConstruction_GetAttrFloatList);
}

std::vector<TF_DataType> Types(TF_OpKernelConstruction* context, const char* name) {
  return List<TF_DataType>(context, name, TF_OpKernelConstruction_GetAttrTypeList);
}

std::string Text(TF_OpKernelConstruction* context, const char* name) {
  Status status;
  int32_t count = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(context, name, &count, &bytes, status.status);
  std::string value(bytes > 0 ? bytes : 0, '\0');
  if (bytes > 0) {
    TF_OpKernelConstruction_GetAttrString(context, name, &value[0], bytes, status.status);
  }
  return value;
}

std::vector<std::string> Texts(TF_OpKernelConstruction* context, const char* name) {
  Status status;
  int32_t count = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(context, name, &count, &bytes, status.status);
  if (count <= 0) return {};
  std::vector<char*> starts(count);
  std::vector<size_t> lengths(count);
  std::vector<char> storage(bytes + 1);
  TF_OpKernelConstruction_GetAttrStringList(context, name, starts.data(), lengths.data(), count,
                                            storage.data(), bytes, status.status);
  std::vector<std::string> values;
  for (int i = 0; i < count; i++) values.emplace_back(starts[i], lengths[i]);
  return values;
}

bool Aliased(const Table& table, int operand, int result) {
  for (const Alias& alias : table.aliases) {
    if (alias.operand == operand && alias.result == result) return true;
  }
  return false;
}

VariableUse* UseOf(Fusion* fusion, int op_input) {
  for (VariableUse& use : fusion->variables) {
    if (use.op_input == op_input) return &use;
  }
  fusion->variables.push_back({op_input, -1, -1, true});
  return &fusion->variables.back();
}

// Why a node that is possible on a CPU is not on a GPU, or "".
std::string RefusedOnGpu(const Fusion& fusion) {
  // The host would have to wait for the device in each step to raise an error; TensorFlow's own
  // kernels on a GPU do not raise what those on a CPU do.
  if (!fusion.errors.empty()) return "a kernel on a GPU cannot have checks";
  for (const Operand& operand : fusion.table.operands) {
    bool host = operand.position >= static_cast<int>(fusion.device_inputs);
    if (operand.kind == Kind::kTensor && host) return "a kernel on a GPU reads host memory";
  }
  return "";
}

// Derives from the table what each call needs; returns why the node is impossible, or "".
std::string Prepare(Fusion* fusion, const std::vector<int64_t>& pooled) {
  const Table& table = fusion->table;
  auto is_resource = [&](int i) { return fusion->input_types[i] == TF_RESOURCE; };
  for (size_t i = 0; i < table.operands.size(); i++) {
    const Operand& operand = table.operands[i];
    if (is_resource(operand.position) != (operand.kind == Kind::kVariable)) return "operand kind";
    if (operand.kind == Kind::kTensor) {
      fusion->needed[operand.position] = true;
      continue;
    }
    VariableUse* use = UseOf(fusion, operand.position);
    if (use->operand >= 0) return "variable read twice";
    use->operand = i;
  }
  for (size_t i = 0; i < table.results.size(); i++) {
    const Result& result = table.results[i];
    if (result.kind == Kind::kTensor) {
      Output& output = fusion->outputs[result.position];
      for (size_t k = 0; k < table.operands.size(); k++) {
        const Operand& operand = table.operands[k];
        if (operand.kind == Kind::kTensor && Aliased(table, k, i)) {
          output.forward.push_back(operand.position);
        }
      }
      continue;
    }
    if (!is_resource(result.position)) return "result kind";
    VariableUse* use = UseOf(fusion, result.position);
    if (use->result >= 0) return "variable written twice";
    use->result = i;
  }
  for (VariableUse& use : fusion->variables) {
    // A step that fails a check must leave its variables as they were.
    bool sure = fusion->errors.empty() || use.result < 0;
    bool aliased = use.operand < 0 || use.result < 0 || Aliased(table, use.operand, use.result);
    use.in_place = sure && aliased;
  }
  for (const Guard& guard : table.guards) {
    if (!is_resource(guard.input)) fusion->needed[guard.input] = true;
  }
  for (const Symbol& symbol : table.symbols) {
    if (is_resource(symbol.input)) return "symbol of a variable";
  }
  for (int64_t output : pooled) {
    if (output < 0 || output >= static_cast<int64_t>(fusion->outputs.size())) return "pool";
    fusion->outputs[output].pooled = true;
  }
  if (!fusion->variables.empty() && Shim() == nullptr) return "variables need the shim";
  return "";
}

// Reads what stands in for the kernel; none where it does not fit the node.
Fallback ReadFallback(TF_OpKernelConstruction* context, const Fusion& fusion) {
  Fallback fallback;
  for (int64_t input : Integers(context, "fallback_arguments")) {
    if (input < 0 || input >= static_cast<int64_t>(fusion.input_types.size())) return {};
    fallback.arguments.push_back(static_cast<int>(input));
  }
  std::vector<int64_t> results = Integers(context, "fallback_results");
  if (results.size() != fusion.table.results.size()) return {};
  for (size_t i = 0; i < results.size(); i++) {
    const Result& result = fusion.table.results[i];
    bool variable = result.kind == Kind::kVariable;
    if (results[i] < (variable ? 0 : -1)) return {};
    fallback.takers.push_back({variable, result.position, static_cast<int32_t>(results[i])});
  }
  fallback.function = Text(context, "fallback");
  return fallback;
}

}  // namespace

Fusion* MakeFusion(TF_OpKernelConstruction* context, bool gpu) {
  auto* fusion = new Fusion;
  Status status;
  TF_StringView name = TF_OpKernelConstruction_GetName(context);
  fusion->name.assign(name.data, name.len);
  fusion->input_types = Types(context, "Tin");
  fusion->device_inputs = fusion->input_types.size();
  for (TF_DataType type : Types(context, "Thost")) fusion->input_types.push_back(type);
  for (TF_DataType type : Types(context, "Tout")) {
    fusion->outputs.push_back({type, TF_DataTypeSize(type), {}, false});
  }
  fusion->needed.resize(fusion->input_types.size());
  fusion->errors = Texts(context, "errors");
  TF_OpKernelConstruction_GetAttrInt64(context, "work", &fusion->work, status.status);
  const std::string key = fusion->key = Text(context, "kernel");
  fusion->retired = Retired(key);
  std::string& error = fusion->broken;
  if (gpu) {
    fusion->program = FindProgram(key);
  } else {
    fusion->kernel = FindKernel(key);
  }
  std::vector<int64_t> words = Integers(context, "table");
  if (Decode(words.data(), words.size(), fusion->input_types.size(), fusion->outputs.size(),
             &fusion->table, &error)) {
    error = Prepare(fusion, Integers(context, "pool"));
    if (gpu && error.empty()) error = RefusedOnGpu(*fusion);
    if (gpu && error.empty() && Shim() == nullptr) error = "a GPU's stream needs the shim";
    if (Shim() != nullptr) fusion->fallback = ReadFallback(context, *fusion);
    fusion->tolerances = Floats(context, "_tolerance");
    fusion->tolerances.resize(fusion->table.results.size());
    fusion->units = Floats(context, "_units");
    fusion->units.resize(fusion->table.operands.size());
  }
  if (fusion->kernel == nullptr && fusion->program == nullptr) {
    error = "kernel " + key + " is not loaded";
  }
  if (Fault("construct", key)) error = "a fault on purpose";
  if (!error.empty() && fusion->fallback.function.empty()) {
    AddFailure(key, fusion->name, error);
    TF_SetStatus(status.status, TF_INTERNAL, ("stitch: " + error).c_str());
    TF_OpKernelConstruction_Failure(context, status.status);
  }
  return fusion;
}

}  // namespace stitch

int stitch_check_fusion(const int64_t* table, size_t words, const int32_t* types, int inputs,
                        int host, int outputs, int gpu, char* error, size_t error_size) {
  stitch::Fusion fusion;
  fusion.device_inputs = inputs;
  for (int i = 0; i < inputs + host; i++) {
    fusion.input_types.push_back(static_cast<TF_DataType>(types[i]));
  }
  for (int i = 0; i < outputs; i++) {
    auto type = static_cast<TF_DataType>(types[inputs + host + i]);
    fusion.outputs.push_back({type, TF_DataTypeSize(type), {}, false});
  }
  fusion.needed.resize(fusion.input_types.size());
  std::string why;
  if (stitch::Decode(table, words, inputs + host, outputs, &fusion.table, &why)) {
    why = stitch::Prepare(&fusion, {});
    if (gpu && why.empty()) why = stitch::RefusedOnGpu(fusion);
  }
  snprintf(error, error_size, "%s", why.c_str());
  return why.empty();
}
