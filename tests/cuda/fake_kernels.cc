// The entry points for kernels. An image may be anything: its kernels are those of
// client-lib/src/cuda/kernels/on_host.h, which run on the CPU.
#include "client-lib/src/cuda/kernels/on_host.h"

#include <optional>
#include <string_view>

#include "common/base/dtype.h"
#include "fake_entry.h"
#include "fake_exports.h"

namespace tensorlane::fake_cuda {
namespace {

constexpr unsigned kMaxThreads = 1024, kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535;
constexpr int kParameters = 4;

// Of the dtype that ends the kernel's name.
Dtype dtype_of(std::string_view kernel) {
  std::size_t number = 0;
  while (!kernel.ends_with(std::string("_") + dtype_name(static_cast<Dtype>(number)))) ++number;
  return static_cast<Dtype>(number);
}

// What numbers of this type become when they are combined.
Dtype accumulator_of(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype;
}

// Nothing: there is no kernel of this name.
std::optional<Function> find_kernel(const std::shared_ptr<Module>& module, const char* name) {
  const bool combines = client::cuda::combine_on_host(name, nullptr, {}, 0, 0);
  const bool finishes = client::cuda::finish_on_host(name, nullptr, nullptr, 0, 1);
  if (!combines && !finishes) return std::nullopt;
  const Dtype dtype = dtype_of(name);
  const std::size_t of_tensor = dtype_size(dtype), combined = dtype_size(accumulator_of(dtype));
  return Function{module, name, finishes, finishes ? combined : of_tensor, finishes ? of_tensor : combined};
}

template <typename T>
T parameter(void** parameters, int place) {
  return *static_cast<const T*>(parameters[place]);
}

bool all_given(void** parameters) {
  for (int place = 0; parameters != nullptr && place < kParameters; ++place) {
    if (parameters[place] == nullptr) return false;
  }
  return parameters != nullptr;
}

// More than there is of memory where the product is too large for its type.
std::size_t bytes_of(std::uint64_t elements, std::size_t element_bytes) {
  std::size_t bytes = 0;
  return __builtin_mul_overflow(elements, element_bytes, &bytes) ? -1 : bytes;
}

// What a kernel is given, as it is at this moment.
void read_parameters(void** parameters, Operation& operation) {
  Launch& launch = *operation.launch;
  operation.direction = kFakeCudaKernel;
  operation.to = pointer_to(parameter<DevicePointer>(parameters, 0));
  if (launch.function->finishes) {
    launch.sources.at[0] = parameter<DevicePointer>(parameters, 1);
    launch.count = 1;
    launch.elements = parameter<std::uint64_t>(parameters, 2);
    launch.divisor = parameter<double>(parameters, 3);
  } else {
    launch.sources = parameter<client::cuda::KernelSources>(parameters, 1);
    launch.count = parameter<std::uint32_t>(parameters, 2);
    launch.elements = parameter<std::uint64_t>(parameters, 3);
  }
  launch.source_bytes = bytes_of(launch.elements, launch.function->source_bytes);
  operation.bytes = bytes_of(launch.elements, launch.function->result_bytes);
}

}  // namespace

int cuModuleLoadData(Module_* module, const void* image) {
  Entry entry(Call::cuModuleLoadData);
  if (!entry.in_working_context() || !entry.is_safe()) return entry.error();
  if (module == nullptr || image == nullptr) return entry.violate(kInvalidValue, "there is no image");
  *module = static_cast<Module_>(entry.state().create_module(entry.device()));
  return kSuccess;
}

int cuModuleUnload(Module_ handle) {
  Entry entry(Call::cuModuleUnload);
  if (!entry.in_context() || !entry.is_safe()) return entry.error();
  const auto module = entry.module(handle);
  if (module == nullptr) return entry.error();
  if (module->queued > 0 && entry.state().devices[module->device].error == 0)
    entry.violate(0, module->queued, " launches of the module's functions have not ended");
  entry.state().unload(handle);
  return entry.result(module->device);
}

int cuModuleGetFunction(Function_* function, Module_ handle, const char* name) {
  Entry entry(Call::cuModuleGetFunction);
  if (!entry.in_working_context()) return entry.error();
  const auto module = entry.module(handle);
  if (module == nullptr) return entry.error();
  if (function == nullptr || name == nullptr) return entry.fail(kInvalidValue);
  const auto kernel = find_kernel(module, name);
  if (!kernel) return entry.fail(kNotFound);
  *function = static_cast<Function_>(entry.state().handle_of(*kernel));
  return kSuccess;
}

int cuLaunchKernel(Function_ handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream_ stream, void** parameters,
                   void** extra) {
  auto operation = Operation::make(Operation::Kind::kKernel, Call::cuLaunchKernel);
  Entry entry(Call::cuLaunchKernel);
  if (!entry.in_working_context()) return entry.error();
  auto function = entry.function(handle);
  if (function == nullptr) return entry.error();
  const bool grid_fits = grid_x - 1 < kMaxGridX && grid_y - 1 < kMaxGridYZ && grid_z - 1 < kMaxGridYZ;
  const std::uint64_t plane = std::uint64_t{block_x} * block_y;
  const bool block_fits = plane - 1 < kMaxThreads && block_z - 1 < kMaxThreads && plane * block_z <= kMaxThreads;
  if (!grid_fits || !block_fits) {
    return entry.violate(kInvalidValue, "a grid of ", grid_x, "*", grid_y, "*", grid_z, " blocks of ", block_x, "*",
                         block_y, "*", block_z, " threads");
  }
  if (extra != nullptr || shared_bytes != 0 || !all_given(parameters))
    return entry.violate(kInvalidValue, "the kernels have ", kParameters, " parameters, and no shared memory");
  operation->launch = std::make_unique<Launch>();
  operation->launch->function = std::move(function);
  read_parameters(parameters, *operation);
  return entry.put(stream, std::move(operation));
}

}  // namespace tensorlane::fake_cuda
