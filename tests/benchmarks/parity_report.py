def write_report(directory, results):
    return ""
