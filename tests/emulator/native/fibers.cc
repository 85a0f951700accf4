// One fiber a thread: stacks, and the switch between them (x86-64, System V).
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "machine.h"

extern "C" void emulated_switch(void** save, void* to);
asm(R"(
.text
.globl emulated_switch
.type emulated_switch,@function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulated {
namespace {

constexpr size_t kGuard = 4096;
std::vector<char*> idle_stacks;

char* NewStack() {
  if (!idle_stacks.empty()) {
    char* stack = idle_stacks.back();
    idle_stacks.pop_back();
    return stack;
  }
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapped == MAP_FAILED || mprotect(mapped, kGuard, PROT_NONE) != 0) {
    perror("emulator: no stack for a thread");
    abort();
  }
  return static_cast<char*>(mapped) + kGuard;
}

// Where a fiber begins; it never returns.
void Begin() {
  machine.entry(machine.arguments);
  Thread& thread = *machine.current;
  thread.state = State::kDone;
  ++thread.block->done;
  ++machine.progress;
  WhenDone(thread);
  Leave();
  abort();
}

}  // namespace

uint32_t TakeReady(Block& block) {
  std::vector<uint32_t>& ready = block.ready;
  if (machine.order == Order::kRandom) {
    std::swap(ready[machine.Random() % ready.size()], ready.back());
  }
  uint32_t number = ready.back();
  ready.pop_back();
  return number;
}

void Prepare(Thread& thread) {
  thread.stack = NewStack();
  // the return address and a frame whose size keeps the stack aligned as after a call
  void** top = reinterpret_cast<void**>(thread.stack + kStack - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Begin);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  thread.stack_pointer = top;
}

void Recycle(Thread& thread) { idle_stacks.push_back(thread.stack); }

void Resume(Thread& thread) {
  machine.current = &thread;
  emulated_switch(&machine.scheduler, thread.stack_pointer);
  machine.current = nullptr;
}

void Leave() {
  Thread* self = machine.current;
  Block& block = *self->block;
  if (block.ready.empty()) {
    emulated_switch(&self->stack_pointer, machine.scheduler);
    return;
  }
  Thread* next = &block.threads[TakeReady(block)];
  if (next == self) return;
  machine.current = next;
  emulated_switch(&self->stack_pointer, next->stack_pointer);
}

void Yield() {
  Thread* self = machine.current;
  self->block->ready.push_back(self->number);
  Leave();
}

void Sleep() {
  Thread* self = machine.current;
  self->state = State::kAsleep;
  self->block->asleep.push_back(self->number);
  Leave();
}

void Stop() {
  machine.stopped = true;
  emulated_switch(&machine.current->stack_pointer, machine.scheduler);
  abort();  // a stopped grid is never resumed
}

}  // namespace emulated
