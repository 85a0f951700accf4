// TF_InitKernel: the ops and kernels of the plug-in.
#include <stdio.h>

#include <initializer_list>

#include "exports.h"
#include "op.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

namespace {

// The C API's shape functions cannot read list attributes; `_output_shapes` on the node tells
// later passes what they need.
void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void NoShapes(TF_ShapeInferenceContext*, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void Complain(const char* what, TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "[stitch] %s: %s\n", what, TF_Message(status));
  }
}

// A kernel for a device that this TensorFlow does not have is never asked for.
void RegisterKernel(const char* op, const char* device, const char* host_memory,
                    const stitch::Functions& functions, TF_Status* status) {
  TF_KernelBuilder* builder = TF_NewKernelBuilder(op, device, functions.create, functions.compute,
                                                  functions.destroy);
  if (host_memory != nullptr) TF_KernelBuilder_HostMemory(builder, host_memory);
  TF_RegisterKernelBuilder(op, builder, status);
  Complain(op, status);
}

void RegisterFusion(const char* name, bool stateful, TF_Status* status) {
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddInput(op, "arguments: Tin");
  // Whose shapes only are read, or which TensorFlow keeps in host memory (scalars, int32).
  TF_OpDefinitionBuilderAddInput(op, "host_arguments: Thost");
  TF_OpDefinitionBuilderAddOutput(op, "results: Tout");
  for (const char* attribute :
       {"Tin: list(type) >= 0", "Thost: list(type) >= 0 = []", "Tout: list(type) >= 0",
        "kernel: string", "table: list(int)", "errors: list(string) = []",
        "work: int = 0", "pool: list(int) = []", "fallback: string = ''",
        "fallback_arguments: list(int) = []", "fallback_results: list(int) = []"}) {
    TF_OpDefinitionBuilderAddAttr(op, attribute);
  }
  TF_OpDefinitionBuilderSetIsStateful(op, stateful);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, UnknownShapes);
  TF_RegisterOpDefinition(op, status);
  Complain(name, status);
  RegisterKernel(name, "CPU", nullptr, stitch::FusionFunctions(), status);
  RegisterKernel(name, "GPU", "host_arguments", stitch::GpuFusionFunctions(), status);
}

// It stands on the device of what waits for it, and has no tensors.
void RegisterMark(const char* name, const stitch::Functions& on_cpu,
                  const stitch::Functions& on_gpu, TF_Status* status) {
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(op, "step: int");
  TF_OpDefinitionBuilderAddAttr(op, "arm: int");
  TF_OpDefinitionBuilderAddAttr(op, "caller_thread: bool = false");  // see caller_thread.cc
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, NoShapes);
  TF_RegisterOpDefinition(op, status);
  Complain(name, status);
  RegisterKernel(name, "CPU", nullptr, on_cpu, status);
  RegisterKernel(name, "GPU", nullptr, on_gpu, status);
}

}  // namespace

STITCH_EXPORT void TF_InitKernel() {
  TF_Status* status = TF_NewStatus();
  RegisterFusion("StitchedFusion", false, status);
  RegisterFusion("StitchedUpdate", true, status);
  RegisterMark("StitchTimer", stitch::TimerFunctions(), stitch::GpuTimerFunctions(), status);
  RegisterMark("StitchGate", stitch::GateFunctions(), stitch::GpuGateFunctions(), status);
  TF_DeleteStatus(status);
}
