#include "monitor/cli/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "common/files/careful.h"

namespace tensorlane::cli {
namespace {

constexpr const char* kWhat = "the file";

}  // namespace

Status can_write_output(const std::string& path) {
  return path.empty() ? Status() : files::check_creatable(path, kWhat);
}

Status write_output(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  TL_ASSIGN_OR_RETURN(const int file, files::create(path, kWhat, files::Readers::kByUmask));
  std::string_view rest = text;
  int error = 0;
  while (!rest.empty() && error == 0) {
    const ssize_t count = ::write(file, rest.data(), rest.size());
    if (count > 0) rest.remove_prefix(static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) error = errno;
  }
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0) return {};
  return Status(Code::kUnavailable, std::string("cannot write the file: ") + std::strerror(error), path,
                "free space on the disk or choose another path");
}

}  // namespace tensorlane::cli
