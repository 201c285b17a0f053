// GPUs for PyTorch that are none: the device type "fake_gpu" (PrivateUse1), whose memory is the process's. Operations
// run on the CPU, on the calling thread, when the current stream has done what it was given so far: one that is not
// ordered behind what the library does sees the old values. Copies from a fake GPU to itself are put on the stream:
// what the library does sees the old values where it is not ordered behind them. Autograd has threads for it, as for
// CUDA.
#include <dlfcn.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "streams.h"

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

thread_local c10::DeviceIndex current_device = 0;

c10::Stream stream_of(c10::Device device, fake_gpu::Stream number) {
  return c10::Stream(c10::Stream::UNSAFE, device, number);
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(kType, current_device);
    current_device = index_of(device);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(kType, current_device); }
  void setDevice(c10::Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = index_of(device); }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Device whole(kType, index_of(device));
    return stream_of(whole, fake_gpu::current_stream(whole.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device, fake_gpu::default_stream(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    const c10::Device whole(kType, index_of(device));
    return stream_of(whole, fake_gpu::new_stream(whole.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device(), fake_gpu::exchange_stream(stream.device_index(), stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(fake_gpu::device_count());
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    *event = fake_gpu::record(*event, stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override { fake_gpu::wait(event, stream.id()); }
  bool queryEvent(void* event) const override { return fake_gpu::is_done(event); }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override { fake_gpu::destroy(event); }
  void synchronizeEvent(void* event) const override { fake_gpu::synchronize_event(event); }
  void synchronizeStream(const c10::Stream& stream) const override { fake_gpu::synchronize(stream.id()); }
  void synchronizeDevice(c10::DeviceIndex device) const override { fake_gpu::synchronize_device(device); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(fake_gpu::device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
};

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current_device);
    if (bytes == 0) return {nullptr, nullptr, &fake_gpu::free, device};
    void* memory = fake_gpu::allocate(current_device, bytes);
    return {memory, memory, &fake_gpu::free, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator)

// Makes the device current as long as it lives.
struct On {
  explicit On(std::optional<c10::Device> device) : before(current_device) {
    if (device.has_value()) current_device = index_of(*device);
  }
  ~On() { current_device = before; }
  c10::DeviceIndex before;
};

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> /*layout*/,
                 std::optional<c10::Device> device, std::optional<bool> /*pinned*/,
                 std::optional<c10::MemoryFormat> format) {
  const On on(device);
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> /*layout*/, std::optional<c10::Device> device,
                         std::optional<bool> /*pinned*/) {
  const On on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

void synchronize(const at::Tensor& tensor) {
  if (tensor.device().type() == kType) fake_gpu::synchronize(fake_gpu::current_stream(tensor.device().index()));
}

// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.device().type() != kType) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  synchronize(tensor);
  return on_cpu(tensor).item();
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  fake_gpu::record_use(tensor.storage().mutable_data(), stream.id());
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> /*format*/) {
  const On on(self.device());
  auto* storage = self.storage().unsafeGetStorageImpl();
  std::size_t bytes = self.dtype().itemsize();
  for (const std::int64_t extent : size) bytes *= extent;
  if (bytes > storage->nbytes()) {
    storage->set_data_ptr_noswap(allocator.allocate(bytes));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (from.device() == to.device() && from.dtype() == to.dtype() && from.sizes() == to.sizes() &&
      from.is_contiguous() && to.is_contiguous()) {
    fake_gpu::copy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes(),
                   fake_gpu::current_stream(to.device().index()));
    return to;
  }
  synchronize(from);
  synchronize(to);
  if (to.numel() > 0) on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const c10::IValue& value : *stack) {
    if (value.isTensor() && value.toTensor().defined()) synchronize(value.toTensor());
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
}

// The memory at `address`, which a Python object owns. Python is in the process, but not linked.
at::Tensor tensor_of(std::int64_t address, std::int64_t bytes, std::int64_t object, c10::Device device) {
  const auto of_python = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
  using OfObject = void (*)(void*);
  static const auto increase = reinterpret_cast<OfObject>(of_python("Py_IncRef"));
  static const auto decrease = reinterpret_cast<OfObject>(of_python("Py_DecRef"));
  static const auto lock = reinterpret_cast<int (*)()>(of_python("PyGILState_Ensure"));
  static const auto unlock = reinterpret_cast<void (*)(int)>(of_python("PyGILState_Release"));
  void* owner = reinterpret_cast<void*>(object);
  const auto with_python = [](OfObject change, void* of) {
    const int state = lock();
    change(of);
    unlock(state);
  };
  with_python(increase, owner);
  return at::from_blob(
      reinterpret_cast<void*>(address), {bytes}, [=](void*) { with_python(decrease, owner); },
      at::TensorOptions().dtype(at::kByte).device(device), device);
}
TORCH_LIBRARY(fake_gpu, m) {
  m.def("tensor_of(int address, int bytes, int object, Device device) -> Tensor", &tensor_of);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

// For __init__.py.
extern "C" __attribute__((visibility("default"))) void fake_gpu_register() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}
extern "C" __attribute__((visibility("default"))) void fake_gpu_empty_cache() {
  fake_gpu::empty_cache();
}
extern "C" __attribute__((visibility("default"))) void fake_gpu_poison(int on) {
  fake_gpu::poison(on != 0);
}
