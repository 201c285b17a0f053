# Writes the fat binary IMAGE as C++, to OUTPUT: kernel_image() of client-lib/src/cuda/kernels.h. Words of 8 bytes, little-endian as every machine
# for which there is an nvcc, because single bytes take a compiler eight times as long.
file(SIZE ${IMAGE} bytes)
file(READ ${IMAGE} hex HEX)
math(EXPR rest "(8 - ${bytes} % 8) % 8")
string(REPEAT "00" ${rest} padding)
set(byte "([0-9a-f][0-9a-f])")
string(REGEX REPLACE "${byte}${byte}${byte}${byte}${byte}${byte}${byte}${byte}" "0x\\8\\7\\6\\5\\4\\3\\2\\1,\n" words "${hex}${padding}")
file(WRITE ${OUTPUT} "// Made by cmake/cuda_image.cmake.
#include <cstdint>

#include \"client-lib/src/cuda/kernels.h\"

namespace tensorlane::client::cuda {
namespace {

alignas(64) constexpr std::uint64_t kImage[] = {
${words}};

}  // namespace

std::span<const std::byte> kernel_image() {
  return std::as_bytes(std::span(kImage)).first(${bytes});
}

}  // namespace tensorlane::client::cuda
")
