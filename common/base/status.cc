#include "common/base/status.h"

#include "common/base/error_line.h"
#include "common/base/text.h"

namespace tensorlane {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kAlreadyExists:
      return "already exists";
    case Code::kPermissionDenied:
      return "permission denied";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kTimedOut:
      return "timed out";
    case Code::kAborted:
      return "aborted";
    case Code::kMismatch:
      return "mismatch";
    case Code::kVersionMismatch:
      return "version mismatch";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kInProgress:
      return "in progress";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown";
}

Status::Status(Code code, std::string what, std::string where, std::string fix)
    : code_(code), what_(std::move(what)), where_(std::move(where)), fix_(std::move(fix)) {}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = what_.empty() ? code_name(code_) : what_;
  if (!where_.empty()) text += ": " + where_;
  if (!fix_.empty()) text += ": " + fix_;
  return text;
}

std::string Status::error_line() const {
  return tensorlane::error_line("tensorlane", *this);
}

std::string error_line(std::string_view command, const Status& status) {
  // One line, whatever a name of the input held; and none of it speaks to the terminal.
  std::string line = std::string(command) + ": error: " + status.to_string();
  for (char& c : line) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return printable(line);
}

}  // namespace tensorlane
