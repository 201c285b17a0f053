#include "common/json/json.h"

TL_JSON_TEMPLATES()
