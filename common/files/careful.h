// Opening files whose place or content somebody else might have chosen.
//
// None of these waits: what is no regular file (a FIFO, a device, a folder) is an error at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/files/place.h"

namespace tensorlane::files {

// What must hold of a file, beside that strangers cannot replace it: its folder is not writable for everybody, unless
// with the sticky bit.
enum class Care : std::uint8_t {
  kConfiguration,  // not everybody may write it
  kSharedSecret,   // neither may everybody read it, and it belongs to this process's user or to root
  kKey,            // nobody but its owner, this process's user or root, may do either; it is no symbolic link
};

// The whole content. `what` is what messages call it: "the secret key". Errors: kInvalidArgument, with the reason, the
// path and the command that mends it; kResourceExhausted for more than `most`.
Result<std::string> read(const std::string& path, const std::string& what, Care care, Bytes most = mib(64));
// Messages name the path without its root.
Result<std::string> read(const Place& place, const std::string& what, Care care, Bytes most = mib(64));

// Who may read what create() makes.
enum class Readers : std::uint8_t {
  kOwner,    // mode 0600, also of a file that was there
  kByUmask,  // as files are made by default; one that was there keeps its mode
};

// A file of this process's own, to be written from its beginning on: made, or emptied. Refuses symbolic links, files
// with several names, and those of another user, since what they point to might be somebody's.
// Returns a descriptor that the caller closes. Errors: kUnavailable, with `what`, the reason and the path.
Result<int> create(const std::string& path, const std::string& what, Readers readers = Readers::kOwner);

// Writes all of the text to a descriptor of create(), which stays open. Errors: kUnavailable, as create().
Status write_all(int file, std::string_view text, const std::string& path, const std::string& what);

// Whether create() would open it, without making or emptying it. Errors: as create().
Status check_creatable(const std::string& path, const std::string& what);

}  // namespace tensorlane::files
