#include "monitor/cli/json_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "monitor/answers/parse.h"

namespace tensorlane::cli {

Result<nlohmann::json> read_json_file(const std::string& path, const char* fix) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return Status(Code::kInvalidArgument, "this is a folder", path, fix);
  errno = 0;
  std::ifstream file(path);
  if (!file.is_open()) return Status(Code::kInvalidArgument, std::strerror(errno), path, fix);
  nlohmann::json read = answers::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  if (read.is_discarded()) return Status(Code::kInvalidArgument, "this is no JSON, or too deep", path, fix);
  return read;
}

}  // namespace tensorlane::cli
