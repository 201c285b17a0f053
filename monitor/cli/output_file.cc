#include "monitor/cli/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

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
  const Status written = files::write_all(file, text, path, kWhat);
  const bool closed = ::close(file) == 0;
  if (!written.ok() || closed) return written;
  return Status(Code::kUnavailable, std::string("cannot write the file: ") + std::strerror(errno), path,
                "free space on the disk or choose another path");
}

}  // namespace tensorlane::cli
